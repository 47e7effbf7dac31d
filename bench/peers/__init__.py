"""What people use instead: installed, started on the loopback with data on the same disk, and stopped again."""
