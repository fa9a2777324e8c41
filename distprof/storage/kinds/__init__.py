"""The peculiarities of each kind of storage, and the schemes of their URLs."""
