"""The idempotent reverse proxy: reserve, forward, commit by the route's verdict, and answer repeats from the store.

Pure: ``http1`` (requests, strictly), ``routes``, ``methods``, ``verdict``, ``headers``, ``answers``. Shells:
``upstream`` and ``forward`` (the far side), ``desk`` (the shards), ``attempt`` (one protected request),
``client_side``, ``connection`` and ``door`` (the near side).
"""
