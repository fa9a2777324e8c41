"""Communication of a run: what each rank recorded comes in, matched and measured collectives go out."""
