"""What runs in the process of a Python model's instance: the model, and its `triton_python_backend_utils`.

Never imports another room, so that it starts fast and under interpreters that know nothing of the server. In: messages
of `src/child.rs` and views on clients' memory. Out: answers, with outputs written where clients read them.
"""
