#!/bin/sh
export GREETING='hello from a sif'
if [ -d /proc ]; then
    export ONLY_A_SHELL_KNOWS=yes
fi
