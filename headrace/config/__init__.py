"""Config: text into objects, and all that can be said about it without running anything.

Does: the server's options (one source for command line, environment and docs), config.pbtxt into a
`ModelConfig`, its completion from what a model file says, its checks, label files, and the `ModelSpec` that the
other rooms read. Never: opens a model file, knows a backend. In: text. Out: frozen objects, or a `ConfigError` that
names file and field.
"""
