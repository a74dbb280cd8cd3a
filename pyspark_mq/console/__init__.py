"""The console: a store or a cluster in a browser. `console_server` makes the Starlette application, and serves it.

Pages are rendered on the server. `console.js` replaces parts of an open page with server-sent events, and draws charts.
"""
