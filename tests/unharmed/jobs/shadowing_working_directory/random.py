raise SystemExit("the wrong random")
