"""Who a node is: keys, certificates, the cluster's CA, join tokens, and the ledger of the CA's notices."""
