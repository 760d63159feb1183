"""Intervals, tests and ranks of plain numbers, without MLflow. Their tests simulate coverage and error rates."""
