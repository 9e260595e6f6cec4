"""What the cases share: addresses, and what the scripted server is told to say."""
import sys

URL, SMALL = sys.argv[1].split()  # a server with much context, and one of 4096 tokens
FINE = "[[say=Fine.]]"
LONG = "x " * 3000
DSML = "｜DSML｜"


def call(name, key, value):
    """A prompt that makes the server call a tool with one argument."""
    return (f"[[say=\n\n<{DSML}function_calls>\n<{DSML}invoke name=\"{name}\">\n<{DSML}parameter "
            f"name=\"{key}\" string=\"true\">{value}</{DSML}parameter>\n</{DSML}invoke>\n"
            f"</{DSML}function_calls>]]")


def raises(kind, f, *args, **kw):
    try:
        f(*args, **kw)
    except kind:
        return
    except Exception as e:
        raise AssertionError(f"{type(e).__name__} came, not {kind.__name__}: {e}")
    raise AssertionError(f"no {kind.__name__} came")
