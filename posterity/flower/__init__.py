"""The same methods across machines, on Flower: sites that keep their data, and a server that has none.

    settings.py    what an app's run config says, and whether a run goes on with the settings that it began with
    codec.py       trees as bytes and back, checked
    agreement.py   what server and sites make by themselves, from the configuration and from what was registered
    question.py    what is asked in a round, and what is read of the replies
    samples.py     a site's own samples
    records.py     a client's record on its own disk
    site.py        what a site answers: who it is, its message, its scores, its wish to leave; its own model at work
    scores.py      a client's scores on their way, and the lines that the server makes of them
    sent.py        what left a site, leaf by leaf, and what it says when it does not answer
    roster.py      who is who: clients by name, whatever the number of their node
    server.py      rounds: offers out, messages added up; what the server draws that no site may know
    experiment.py  an experiment from where its folder stands to its end; clients that go for good
    new_app.py     an app's folder
    app.py         the ServerApp and the ClientApp; nothing else of the package knows Flower

What a site and the server say to each other are bytes of `codec.py`, so that everything but `app.py` also runs without
Flower: `tests/flower` does so for every method.
"""
