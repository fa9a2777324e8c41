raise SystemExit("the wrong queue")
