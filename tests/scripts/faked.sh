#!/bin/sh
# Runs a command on a clock of its own: FAKETIME_OF_3="+3s x1.0001" makes local rank 3 wrong. LIBFAKETIME: the library.
eval "spec=\$FAKETIME_OF_$LOCAL_RANK"
if [ -n "$spec" ]; then
    export LD_PRELOAD="$LIBFAKETIME" FAKETIME="$spec" FAKETIME_DONT_FAKE_MONOTONIC=1
fi
exec "$@"
