"""tbrl's tasks as an OpenEnv environment, for trainers and clients that speak OpenEnv.

    client --WebSocket /ws--> OpenEnv's server --> BusinessEnvironment      one a connection
                                                        |
                                 OutsideEpisode: the loop of evaluation/chat_episode.py, in which
                                 the client is the model: sandbox, simulated user, limits
                                                        |
                                 GraderProcess: golden data, and nothing but a number comes back

server.py and environment.py need the package openenv-core (extra `openenv`); so do models.py and
client.py, which is all that a client needs of tbrl.
"""
