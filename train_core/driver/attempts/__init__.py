"""The attempts at a training, one after the other.

supervisor       trains a run to its end, by as many attempts as it takes
pool_launcher    runs the ranks of an attempt on the workers of a pool
orphan_deletion  deletes what broken attempts left, while another one trains

Requests to stop an attempt are in `train_core/rank/distributed/stop_requests.py`.
"""
