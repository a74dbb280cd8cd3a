"""The console: a store or a cluster in a web browser. `console_server` creates and serves the application.

Pages are rendered on the server. `console.js` replaces parts of an open page by server-sent events, and draws charts.
"""
