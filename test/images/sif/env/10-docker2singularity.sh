#!/bin/sh
export PATH="/opt/app/bin:/usr/bin:/bin"
export MODE="${MODE:-"quick and dirty"}"
