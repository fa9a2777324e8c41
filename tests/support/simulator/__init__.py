"""Jobs that run in no process: programs of ranks, the backend that moves their data, and the files they would leave."""
