"""The same methods across machines, on Flower: sites that keep their data, and a server that has none.

    agreement.py   what server and sites make by themselves, from the configuration and from what was registered
    settings.py    what an app's run config says
    samples.py     a site's own samples
    records.py     a client's record on its own disk
    site.py        what a site answers: who it is, its message, its scores
    scores.py      a client's scores on their way, and the lines that the server makes of them
    sent.py        what left a site, leaf by leaf
    refusal.py     what a site says when it does not answer
    wish.py        a site's own wish to leave
    predict.py     a site's own model at work
    roster.py      who is who: clients by name, whatever the number of their node
    request.py     what is asked in a round, and what is read of the replies
    rules.py       how many replies a round needs
    secret.py      what the server draws that no site may know
    leave.py       clients that go for good, and take their factor along
    facts.py       run.json of the server's folder
    unchanged.py   whether a run goes on with the settings that it began with
    server.py      rounds: offers out, messages added up, state saved
    experiment.py  an experiment from where its folder stands to its end
    app.py         the ServerApp and the ClientApp; nothing else of the package knows Flower

What a site and the server say to each other are bytes of `flower/codec.py`, so that everything but `app.py` also
runs without Flower: `tests/flower` does so for every method. `posterity flower new DIR` writes an app (`new_app.py`).
"""
