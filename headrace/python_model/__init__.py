"""What runs in the process of a Python model's instance: the model, and its `triton_python_backend_utils`.

Does: starts the model, gives it its requests as views on shared memory, and writes outputs where clients read them.
Never: imports another room; it starts fast, also under interpreters that know nothing of the server.
In: messages of `src/child.rs`. Out: answers, and lines for the log.
"""
