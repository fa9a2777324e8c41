"""What `distprof diff` says, in text, JSON, Markdown and HTML."""
