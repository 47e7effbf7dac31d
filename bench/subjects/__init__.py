"""What is measured, one module each: ``measure(bench)`` returns a section of the report."""
