"""Headrace: an inference server that speaks the protocol of NVIDIA's Triton Inference Server."""

from importlib.metadata import version

__version__ = version("headrace")
