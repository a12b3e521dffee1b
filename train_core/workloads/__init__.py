"""The shipped workloads: two classifiers of small grey images.

digits  handwritten digits of scikit-learn: the default workload, with no download
mnist   ResNet-18 on MNIST, or any data set in MNIST's files
images  the base class of both, and the settings of AdamW
resnet  ResNet-18 with torchvision's parameter names, and its published weights
idx     IDX files, the format of MNIST and its kin, read from any fsspec URL
"""
