"""Communication between ranks and nodes: rendezvous, connections, forwarding, receiving."""
