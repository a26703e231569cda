"""Adaptation of a classifier to its noise and partition, with unlabelled images.

The adapted classifier is one fixed function of the noisy image, so its certificates are those of any base classifier.
"""
