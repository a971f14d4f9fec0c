"""Streams over gRPC, for workers; needs the extra ``hookstation-client[grpc]``.

Nothing here is imported unless a client has the address of a broker's gRPC server.
"""
