"""Other people's tools doing the same head ablations, each in that tool's own idiom.

One environment holds all of them (`env.py` makes it, `requirements.txt` pins it), apart from ours.  A tool
is one file with the name of its `PACKAGE` and a class `Tool(folder, tokens)`: it loads the model saved in `folder`, and
`last_logits(heads)` returns the logits (B, V) at the last position of `tokens` (B, L) with the output of
those heads, `heads` = {layer: [head, ...]}, set to zero.  `worker.py` runs a tool in that environment and
answers over lines of JSON; `client.py` is our end of it, so that timed runs of ours and theirs alternate.

The tool files and the worker import nothing of ours.
"""
