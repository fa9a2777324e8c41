raise SystemExit("the wrong distprof")
