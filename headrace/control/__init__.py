"""Control: every verb that is not an inference.

Does: `verbs` is one object with one method a verb; `grpc` and `http` translate messages and JSON to it and
back; `loop` pulls calls from the wire. Never: serves a request, keeps state of its own. In: calls. Out:
answers.
"""
