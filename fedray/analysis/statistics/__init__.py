"""Intervals, tests and ranks of plain numbers, without MLflow. Tests simulate their coverage and errors."""
