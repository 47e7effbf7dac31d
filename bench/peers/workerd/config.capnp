# A Durable Object with SQLite storage on a real disk; the folder and the address are given on the command line.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .deduplicator),
    (name = "storage", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "main")],
);

const deduplicator :Workerd.Worker = (
  modules = [(name = "deduplicator", esModule = embed "deduplicator.js")],
  compatibilityDate = "2025-06-01",
  durableObjectNamespaces = [
    (className = "Deduplicator", uniqueKey = "idemactor-bench", enableSql = true),
  ],
  durableObjectStorage = (localDisk = "storage"),
  bindings = [(name = "DEDUPLICATOR", durableObjectNamespace = "Deduplicator")],
);
