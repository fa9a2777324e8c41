"""What other FLOP counters report for a call that distprof has counted; none of them need be installed."""
