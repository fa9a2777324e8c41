"""The output of `distprof diff` as text, JSON, Markdown and HTML."""
