"""What stands between a sender and what it asks for: sources, which find the key of a raw request, and their gateways.

What is pure here (everything that ``resolve`` needs) imports nothing but ``wire`` and ``core``; the doors of the
gateway stand beside ``server``, whose parts they use.
"""
