"""What can go wrong in the demo in a way that a person can act on."""


class DemoError(Exception):
    """A failure whose message is the whole explanation: no traceback is shown."""
