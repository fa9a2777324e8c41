"""What other FLOP counters report for a call that distprof has counted; they need not be installed."""
