"""Headrace on GPUs, beside the real Triton and the floors of the machine."""
