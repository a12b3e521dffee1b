"""Batches of a workload's datasets, and new data to score.

The workload's own data:

recorded_workload  the workload of a recorded run, with its recorded data and its settings
fitted             what a workload fits to its training split: one file of the run
train_loader       the loader of the training split: one stream of micro-batches
batches            raw columns from a dataset, prepared and moved to the device as batches
data_processes     processes that fetch a rank's batches ahead of the loop
prepared           raw columns as a batch: the one way in training, scoring and serving

New data:

inputs             new data to score: tables, a folder of images, IDX files, or a split
input_files        the files of an input: hashed in the driver, verified by each worker
formats            the formats of data to score: the head of a file, and its rows
raw_columns        the raw columns that `prepare` gets in scoring; errors name the file
request_columns    a request to a served model as raw columns
"""
