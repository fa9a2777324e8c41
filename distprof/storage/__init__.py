"""Runs that are stored elsewhere: paths of URLs, their listings and streams, and uploads. fsspec does the transfers.

Nothing here imports fsspec before a URL is used.
"""
