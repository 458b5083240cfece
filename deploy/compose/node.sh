#!/bin/sh
# Starts one node of the compose cluster. Its directory is named after the container, so `--scale peer=9` gives nine
# nodes with nine identities on one volume; the identity is made at the first start and kept.
set -eu

node=/var/lib/peerd/$(hostname)
if [ ! -e "$node/peerd.toml" ]; then
    # ${SEED:+...}: the seed itself has nobody to ask
    peerd init --dir "$node" --cluster "$CLUSTER" --ca /etc/peerd/ca ${SEED:+--bootstrap "$SEED"}
fi
PEERD_NODE__ADVERTISE="$(hostname):7420"
export PEERD_NODE__ADVERTISE
exec peerd run --config "$node/peerd.toml"
