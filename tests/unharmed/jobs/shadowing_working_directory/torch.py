raise SystemExit("the wrong torch")
