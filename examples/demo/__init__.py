"""The demo of `make demo`: a real model, a real picture, through shared memory."""
