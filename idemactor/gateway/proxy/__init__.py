"""The idempotent reverse proxy: reserve, forward, and commit by the route's verdict; repeats are answered from the store.

Pure: ``http1`` (requests, strictly), ``routes``, ``verdict``, ``headers``, ``answers``. Shells: ``upstream`` (the client
side), ``desk`` (the shards), ``attempt`` (one protected request), ``connection`` and ``door`` (the server side).
"""
