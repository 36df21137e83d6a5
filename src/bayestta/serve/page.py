PAGE = "<!doctype html><title>x</title>"
POLICY = "default-src 'self'"
