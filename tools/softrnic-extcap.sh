#!/bin/sh
# Lets Wireshark and tshark capture from softrnic: an extcap program. A symbolic link to this file will do, too.
exec "$(dirname "$(readlink -f "$0")")/../../../bin/softrnic" extcap "$@"
