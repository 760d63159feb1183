"""One run: its rounds, without Ray, Tune or MLflow. `server` asks, `process` answers, `training` computes."""
