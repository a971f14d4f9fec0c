/**
 * Streams over gRPC for {@link dev.hookstation.client.Worker}. A worker uses them by itself where
 * this package is on the class path and its client has the address of the broker's gRPC server;
 * {@link dev.hookstation.client.grpc.GrpcStreams} is for programs that share a connection, or bring
 * their own.
 */
package dev.hookstation.client.grpc;
