"""Raw data: what a dataset is, arrays in memory, and files whose state a run records.

protocols     the kinds of raw data: a map-style dataset, or a stream read forward
arrays        a dataset of arrays in memory
few_samples   some samples of a dataset, as a dataset

sources       the files of a workload's sources: listed as a run begins, read as recorded
files         a file of a workload's data, and its state, told without reading it
recorded      the data that a run recorded, and the check that they are still the same

tables        tables as raw columns: Parquet, CSV and JSON lines, by one rule
forms         what a column holds, in a word, and new data read by what training held
images        images as arrays, by one rule for training and for inference
faulty_files  which file, and which row, made the code that reads it raise
"""
