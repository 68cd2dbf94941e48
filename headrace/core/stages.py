"""The six stages of a request's life. Metrics, logs and statistics use these words and no others."""

DECODE = "decode"
QUEUE = "queue"
INPUT = "input"
INFER = "infer"
OUTPUT = "output"
ENCODE = "encode"

STAGES = (DECODE, QUEUE, INPUT, INFER, OUTPUT, ENCODE)
