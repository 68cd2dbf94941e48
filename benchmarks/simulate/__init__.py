"""The scheduler and the pipeline on simulated GPUs: in virtual time, and behind the real wire."""
